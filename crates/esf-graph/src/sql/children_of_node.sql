SELECT n.node_id, n.group_id, n.parent_id, n.parent_count, n.depth, n.status, n.root_id, n.attrs_id,
       n.base_root_id, n.base_attrs_id, s.json, n.state_id, n.attempt_id, n.message, n.result, n.provenance,
       n.changed, n.merge, n.tag_count, n.statement_digest, n.created_at, n.created_by, n.sealed_at,
       n.pruned_at, n.trace_id
FROM nodes n
JOIN logical_states s ON s.state_id = n.state_id
WHERE n.node_id IN (
    SELECT node_id FROM nodes WHERE parent_id = $1
    UNION
    SELECT node_id FROM merge_parents WHERE parent_id = $1)
ORDER BY n.number
