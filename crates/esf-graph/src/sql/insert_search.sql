INSERT INTO searches (search_id, group_id, root_node_id, root, config, config_digest, status, stopped, selected, accepted,
                      void, cost, positions, expanded, edges, best, stats_rev, created_at, created_by, trace_id)
VALUES ($1, $2, $3, 0, $4, $5, 'open', NULL, 0, 0, 0, 0.0, 0, 0, 0, NULL, 0, $6, $7, $8)
