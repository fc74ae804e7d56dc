// Which versions of a message there are, as a pure function of the branches of a conversation.

/**
 * @typedef {{id: string, parent_branch_id: string|null, fork_seq: number|null}} Branch
 * @typedef {{variants: string[], place: number}} Switch the branches, oldest first, and which one is shown
 */

/**
 * The switches of the shown messages: seq where versions part, to the versions.
 *
 * A branch shows of its parent what stands below `fork_seq`, then its own. Branches that part from
 * one place are versions of the message there, and so is what the parent says there itself.
 * @param {Branch[]} branches oldest first
 * @param {string} shownId the branch that is shown
 * @returns {Map<number, Switch>}
 */
export function switches(branches, shownId) {
  const byId = new Map(branches.map((one) => [one.id, one]));
  const parents = new Map(branches.map((one) => [one.id, originOf(one, byId)]));
  const found = new Map();
  let above = null; // the branch through which the shown one leaves the one that is looked at
  for (let id = shownId; byId.has(id); id = parents.get(id)) {
    const limit = above === null ? Infinity : byId.get(above).fork_seq;
    for (const fork of branches) {
      const seq = fork.fork_seq;
      if (parents.get(fork.id) !== id || seq > limit || found.has(seq)) continue;
      const forks = branches.filter((one) => parents.get(one.id) === id && one.fork_seq === seq);
      const variants = [id, ...forks.map((one) => one.id)];
      found.set(seq, { variants, place: seq === limit ? variants.indexOf(above) : 0 });
    }
    above = id;
  }
  return found;
}

/** The branch that a fork really leaves: one that parts where its parent does leaves its parent's. */
function originOf(branch, byId) {
  let parent = byId.get(branch.parent_branch_id);
  while (parent && parent.fork_seq !== null && branch.fork_seq <= parent.fork_seq) parent = byId.get(parent.parent_branch_id);
  return parent?.id ?? null;
}
