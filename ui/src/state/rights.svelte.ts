/**
 * What the current user may do at a path, so that no enabled button ends in a refusal.
 *
 * Until the rights are known, everything counts as refused. The server checks every write anyway.
 */
import type { OwnPrivileges } from "../server/answers";
import { read } from "../server/client";

/** The rights that the UI asks for. */
export interface Rights {
  isKnown: boolean;
  isAdministrator: boolean;
  /** Create children. */
  add: boolean;
  /** Change properties. */
  edit: boolean;
  /** Remove the node itself. */
  remove: boolean;
  /** Remove children. */
  removeChildren: boolean;
  publish: boolean;
  versions: boolean;
  permissions: boolean;
}

export const NO_RIGHTS: Rights = {
  isKnown: false,
  isAdministrator: false,
  add: false,
  edit: false,
  remove: false,
  removeChildren: false,
  publish: false,
  versions: false,
  permissions: false,
};

/** The privileges that contain others. */
const WITHIN: Record<string, string[]> = {
  "jcr:addChildNodes": ["jcr:write", "rep:write", "jcr:all"],
  "jcr:removeChildNodes": ["jcr:write", "rep:write", "jcr:all"],
  "jcr:removeNode": ["jcr:write", "rep:write", "jcr:all"],
  "jcr:modifyProperties": ["jcr:write", "rep:write", "jcr:all"],
  "crx:replicate": ["jcr:all"],
  "jcr:versionManagement": ["jcr:all"],
  "jcr:readAccessControl": ["jcr:all"],
};

/** Returns the rights of an answer. */
export function rightsOf({ privileges, isAdministrator }: Pick<OwnPrivileges, "privileges" | "isAdministrator">): Rights {
  const held = new Set(privileges);
  const has = (name: string) => isAdministrator || held.has(name) || (WITHIN[name] ?? []).some((one) => held.has(one));
  return {
    isKnown: true,
    isAdministrator,
    add: has("jcr:addChildNodes"),
    // The server names the parts of an aggregate.
    edit: has("jcr:modifyProperties") || (held.has("rep:addProperties") && held.has("rep:alterProperties") && held.has("rep:removeProperties")),
    remove: has("jcr:removeNode"),
    removeChildren: has("jcr:removeChildNodes"),
    publish: has("crx:replicate"),
    versions: has("jcr:versionManagement"),
    permissions: has("jcr:readAccessControl"),
  };
}

/** Returns the rights at a path; none if they cannot be read. */
export async function loadRights(path: string): Promise<Rights> {
  try {
    return rightsOf(await read<OwnPrivileges>("/api/v1/privileges", { path }));
  } catch {
    return { ...NO_RIGHTS, isKnown: true };
  }
}

/** The rights at one path, loaded once the path is set. */
export class PathRights {
  now = $state.raw<Rights>(NO_RIGHTS);
  #path = "";

  async load(path: string): Promise<void> {
    this.#path = path;
    this.now = NO_RIGHTS;
    const rights = await loadRights(path);
    if (path === this.#path) this.now = rights;
  }
}
