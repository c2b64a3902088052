/**
 * Labels of privileges, and texts that explain why a user has them.
 */
import type { Cause } from "../../server/answers";

export interface Privilege {
  name: string;
  label: string;
}

/** The most common privileges, in ascending order of power. */
export const COMMON: Privilege[] = [
  { name: "jcr:read", label: "Read" },
  { name: "rep:write", label: "Write (change, add, remove)" },
  { name: "jcr:modifyProperties", label: "Change properties" },
  { name: "jcr:addChildNodes", label: "Add children" },
  { name: "jcr:removeNode", label: "Remove" },
  { name: "jcr:removeChildNodes", label: "Remove children" },
  { name: "crx:replicate", label: "Activate and deactivate" },
  { name: "jcr:versionManagement", label: "Create and restore versions" },
  { name: "jcr:readAccessControl", label: "View permissions" },
  { name: "jcr:modifyAccessControl", label: "Change permissions" },
  { name: "rep:userManagement", label: "Manage users and groups" },
  { name: "jcr:all", label: "All privileges" },
];

/** The explained actions, with the privileges that each requires. */
export const ACTIONS: { label: string; privileges: string[] }[] = [
  { label: "read it", privileges: ["rep:readNodes", "rep:readProperties"] },
  { label: "change its properties", privileges: ["rep:addProperties", "rep:alterProperties", "rep:removeProperties"] },
  { label: "add pages below", privileges: ["jcr:addChildNodes"] },
  { label: "delete it", privileges: ["jcr:removeNode"] },
  { label: "activate it", privileges: ["crx:replicate"] },
  { label: "create and restore versions", privileges: ["jcr:versionManagement"] },
  { label: "view its permissions", privileges: ["jcr:readAccessControl"] },
  { label: "change its permissions", privileges: ["jcr:modifyAccessControl"] },
];

/** Returns the label of a privilege, or its name if it has none. */
export function privilegeLabel(name: string): string {
  return COMMON.find((one) => one.name === name)?.label ?? name;
}

/** Returns the node that a policy belongs to. */
export function policyNode(policy: string): string {
  return policy.replace(/\/rep:[^/]*$/, "") || "/";
}

/** Returns a sentence that explains the decision. */
export function causeText(cause: Cause, user: string): string {
  switch (cause.kind) {
    case "administrator":
      return `${user} is an administrator. Administrators have all privileges.`;
    case "nothing":
      return "No entry grants it, and nothing is granted by default.";
    case "hidden":
      return "Decided by an entry that you are not allowed to see.";
    case "closedGroup":
      return `${cause.node ?? "A node above"} is restricted to a closed user group that ${user} is not a member of.`;
    case "entry":
      return entryText(cause, user);
    default:
      return cause.kind;
  }
}

function entryText({ policy = "", number, principal = "", through = [], restrictions = [] }: Cause, user: string): string {
  // The chain of groups ends with the group of the entry, or with the group that is its member.
  const chain = through.filter((group) => group !== principal && group !== user);
  const member = chain.length > 0 ? ` (${user} is a member through ${chain.join(", then ")})` : principal !== user && principal !== "everyone" ? ` (${user} is a member)` : "";
  const limits = restrictions.length > 0 ? `, restricted to ${restrictions.join(", ")}` : "";
  return `Entry ${number} at ${policyNode(policy)}, for ${principal}${member}${limits}.`;
}
