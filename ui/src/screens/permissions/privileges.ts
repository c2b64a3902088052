/**
 * Privileges in words, and why somebody has them.
 */
import type { Cause } from "../../server/answers";

export interface Privilege {
  name: string;
  label: string;
}

/** What entries usually grant, from little to much. */
export const COMMON: Privilege[] = [
  { name: "jcr:read", label: "Read" },
  { name: "rep:write", label: "Write: change, add, remove" },
  { name: "jcr:modifyProperties", label: "Change properties" },
  { name: "jcr:addChildNodes", label: "Add below" },
  { name: "jcr:removeNode", label: "Remove" },
  { name: "jcr:removeChildNodes", label: "Remove below" },
  { name: "crx:replicate", label: "Activate and deactivate" },
  { name: "jcr:versionManagement", label: "Keep and restore versions" },
  { name: "jcr:readAccessControl", label: "See permissions" },
  { name: "jcr:modifyAccessControl", label: "Change permissions" },
  { name: "rep:userManagement", label: "Manage users and groups" },
  { name: "jcr:all", label: "Everything" },
];

/** What people ask about, as what it takes. */
export const ACTIONS: { label: string; privileges: string[] }[] = [
  { label: "read it", privileges: ["rep:readNodes", "rep:readProperties"] },
  { label: "change its properties", privileges: ["rep:addProperties", "rep:alterProperties", "rep:removeProperties"] },
  { label: "add pages below", privileges: ["jcr:addChildNodes"] },
  { label: "delete it", privileges: ["jcr:removeNode"] },
  { label: "activate it", privileges: ["crx:replicate"] },
  { label: "keep and restore versions", privileges: ["jcr:versionManagement"] },
  { label: "see its permissions", privileges: ["jcr:readAccessControl"] },
  { label: "change its permissions", privileges: ["jcr:modifyAccessControl"] },
];

/** Returns a privilege in words, or its name. */
export function privilegeLabel(name: string): string {
  return COMMON.find((one) => one.name === name)?.label ?? name;
}

/** Returns the node that a policy belongs to. */
export function policyNode(policy: string): string {
  return policy.replace(/\/rep:[^/]*$/, "") || "/";
}

/** Returns in a sentence what decided. */
export function causeText(cause: Cause, user: string): string {
  switch (cause.kind) {
    case "administrator":
      return `${user} is an administrator, whom no entry binds.`;
    case "nothing":
      return "No entry grants it, and nothing is granted by default.";
    case "hidden":
      return "An entry decided that you may not see.";
    case "closedGroup":
      return `${cause.node ?? "A node above"} is for a closed user group that ${user} is not in.`;
    case "entry":
      return entryText(cause, user);
    default:
      return cause.kind;
  }
}

function entryText({ policy = "", number, principal = "", through = [], restrictions = [] }: Cause, user: string): string {
  // The chain of groups ends with the one that the entry names, or leads there.
  const chain = through.filter((group) => group !== principal && group !== user);
  const member = chain.length > 0 ? ` (${user} is in it through ${chain.join(", then ")})` : principal !== user && principal !== "everyone" ? ` (${user} is in it)` : "";
  const limits = restrictions.length > 0 ? `, restricted to ${restrictions.join(", ")}` : "";
  return `Entry ${number} at ${policyNode(policy)}, for ${principal}${member}${limits}.`;
}
