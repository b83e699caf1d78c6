SELECT s.number, s.search_id, s.group_id, s.root_node_id, s.root, s.config, s.config_digest, s.status, s.stopped, s.selected,
       s.accepted, s.void, s.cost, s.positions, s.expanded, s.edges, s.best, s.stats_rev, s.created_at, s.created_by, s.trace_id
FROM searches s WHERE s.group_id = $1 ORDER BY s.number
