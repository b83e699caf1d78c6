SELECT a.attempt_id, a.group_id, n.parent_id, a.purpose, a.retry_of, e.json, a.executor, n.base_root_id, n.root_id,
       a.priority, a.queued_at
FROM attempts a
JOIN environments e ON e.environment_digest = a.environment_digest
JOIN nodes n ON n.node_id = a.node_id
WHERE a.status = 'queued'
ORDER BY a.number
