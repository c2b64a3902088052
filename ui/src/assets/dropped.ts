/**
 * The files of a drop, a paste or a file input, with the folders that they lie in.
 */
import type { FolderFile } from "./upload.svelte";

/** Files that operating systems put into folders. */
const SYSTEM_FILES = new Set([".DS_Store", "Thumbs.db", "desktop.ini"]);

/** Returns true if a drag carries files. */
export function hasFiles(data: DataTransfer | null): boolean {
  return data?.types.includes("Files") ?? false;
}

/** Returns the files of a drop or paste, those of folders too. Must be called before the event is over. */
export function droppedFiles(data: DataTransfer): Promise<FolderFile[]> {
  const items = [...data.items].filter(({ kind }) => kind === "file");
  // Both must be read at once: the browser empties the list after the event.
  const entries = items.map((item) => ({ entry: item.webkitGetAsEntry?.() ?? null, file: item.getAsFile() }));
  const lists = entries.map(({ entry, file }) => {
    if (entry?.isDirectory) return filesBelow(entry as FileSystemDirectoryEntry, []);
    return Promise.resolve(file ? [{ file, folders: [] }] : []);
  });
  return Promise.all(lists).then((found) => found.flat());
}

/** Returns the files of a file input; one for folders tells where in the folder each lies. */
export function chosenFiles(list: FileList | null): FolderFile[] {
  return [...(list ?? [])]
    .filter(({ name }) => !SYSTEM_FILES.has(name))
    .map((file) => ({ file, folders: file.webkitRelativePath.split("/").slice(0, -1).filter(Boolean) }));
}

async function filesBelow(folder: FileSystemDirectoryEntry, above: string[]): Promise<FolderFile[]> {
  const folders = [...above, folder.name];
  const found: FolderFile[] = [];
  for (const entry of await entriesOf(folder)) {
    if (SYSTEM_FILES.has(entry.name)) continue;
    if (entry.isDirectory) found.push(...(await filesBelow(entry as FileSystemDirectoryEntry, folders)));
    else found.push({ file: await fileOf(entry as FileSystemFileEntry), folders });
  }
  return found;
}

/** The browser returns the entries of a folder in parts, at last an empty one. */
async function entriesOf(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader();
  const all: FileSystemEntry[] = [];
  for (;;) {
    const part = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (part.length === 0) return all;
    all.push(...part);
  }
}

function fileOf(entry: FileSystemFileEntry): Promise<File> {
  return new Promise((resolve, reject) => entry.file(resolve, reject));
}
