WITH RECURSIVE line (node_id) AS (
    SELECT $1
    UNION
    SELECT goes_on_at FROM queue_entries WHERE task_id = $2 AND goes_on_at IS NOT NULL
    UNION
    SELECT c.node_id FROM nodes c JOIN line ON c.parent_id = line.node_id
    WHERE c.status <> 'pruned'
      AND NOT EXISTS (SELECT 1 FROM tasks WHERE first_node_id = c.node_id)
      AND NOT EXISTS (SELECT 1 FROM tasks WHERE integrated_as = line.node_id)
)
SELECT n.node_id, n.group_id, n.parent_id, n.parent_count, n.depth, n.status, n.root_id, n.attrs_id,
       n.base_root_id, n.base_attrs_id, s.json, n.state_id, n.attempt_id, n.message, n.result, n.provenance,
       n.changed, n.merge, n.tag_count, n.statement_digest, n.created_at, n.created_by, n.sealed_at,
       n.pruned_at, n.trace_id
FROM line
JOIN nodes n ON n.node_id = line.node_id
JOIN logical_states s ON s.state_id = n.state_id
WHERE n.status <> 'pruned'
ORDER BY n.number
LIMIT 10000
