/** Returns the messages of all files, with the file of each, and the texts that are no messages. */
export function readSources(): { messages: Map<string, string>; literals: string[] };
/** Returns the text of the list of messages. */
export function listOf(messages: Map<string, string>): string;
