/**
 * Labels of privileges, and texts that explain why a user has them.
 */
import { t } from "../../language";
import type { Cause } from "../../server/answers";

export interface Privilege {
  name: string;
  label: string;
}

/** The most common privileges, in ascending order of power. */
export const COMMON: Privilege[] = [
  { name: "jcr:read", label: t("Read") },
  { name: "rep:write", label: t("Write (change, add, remove)") },
  { name: "jcr:modifyProperties", label: t("Change properties") },
  { name: "jcr:addChildNodes", label: t("Add children") },
  { name: "jcr:removeNode", label: t("Remove") },
  { name: "jcr:removeChildNodes", label: t("Remove children") },
  { name: "crx:replicate", label: t("Publish and unpublish") },
  { name: "jcr:versionManagement", label: t("Create and restore versions") },
  { name: "jcr:readAccessControl", label: t("View permissions") },
  { name: "jcr:modifyAccessControl", label: t("Change permissions") },
  { name: "rep:userManagement", label: t("Manage users and groups") },
  { name: "jcr:all", label: t("All privileges") },
];

/** The explained actions, with the privileges that each requires. */
export const ACTIONS: { label: string; privileges: string[] }[] = [
  { label: t("read it"), privileges: ["rep:readNodes", "rep:readProperties"] },
  { label: t("change its properties"), privileges: ["rep:addProperties", "rep:alterProperties", "rep:removeProperties"] },
  { label: t("add pages below"), privileges: ["jcr:addChildNodes"] },
  { label: t("delete it"), privileges: ["jcr:removeNode"] },
  { label: t("publish it"), privileges: ["crx:replicate"] },
  { label: t("create and restore versions"), privileges: ["jcr:versionManagement"] },
  { label: t("view its permissions"), privileges: ["jcr:readAccessControl"] },
  { label: t("change its permissions"), privileges: ["jcr:modifyAccessControl"] },
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
      return t("{user} is an administrator. Administrators have all privileges.", { user });
    case "nothing":
      return t("No entry grants it, and nothing is granted by default.");
    case "hidden":
      return t("Decided by an entry that you are not allowed to see.");
    case "closedGroup":
      return t("{node} is restricted to a closed user group that {user} is not a member of.", { node: cause.node ?? t("A node above"), user });
    case "entry":
      return entryText(cause, user);
    default:
      return cause.kind;
  }
}

function entryText({ policy = "", number, principal = "", through = [], restrictions = [] }: Cause, user: string): string {
  // The chain of groups ends with the group of the entry, or with the group that is its member.
  const chain = through.filter((group) => group !== principal && group !== user);
  const member = chain.length > 0 ? ` (${t("{user} is a member through {groups}", { user, groups: chain.join(" → ") })})` : principal !== user && principal !== "everyone" ? ` (${t("{user} is a member", { user })})` : "";
  const limits = restrictions.length > 0 ? t(", restricted to {limits}", { limits: restrictions.join(", ") }) : "";
  return t("Entry {number} at {policy}, for {principal}{member}{limits}.", { number: number ?? 0, policy: policyNode(policy), principal, member, limits });
}
