INSERT INTO events (seq, at, kind, group_id, node_id, attempt_id, lease_id, exec_id, evaluation_id, root_id,
                    search_id, rollout_id, run_id, sibling_id, actor, trace_id, detail)
VALUES ((SELECT coalesce(max(seq), 0) + 1 FROM events), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
