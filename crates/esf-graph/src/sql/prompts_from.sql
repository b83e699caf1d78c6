SELECT p.number, p.run, p.prompt_id, r.run_id, p.ordinal, p.task, p.task_digest, p.task_split, p.node_id, p.root_id,
       p.seed, p.size, p.revision, p.refills, p.policy_version, p.status, p.sequence, p.extra, p.created_at
FROM prompts p JOIN runs r ON r.number = p.run WHERE p.run = $1 AND p.ordinal >= $2 ORDER BY p.ordinal LIMIT $3
