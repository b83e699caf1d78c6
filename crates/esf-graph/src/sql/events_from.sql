SELECT seq, at, kind, group_id, node_id, attempt_id, lease_id, exec_id, evaluation_id, root_id, search_id, rollout_id,
       run_id, sibling_id,       actor, trace_id, detail
FROM events WHERE seq >= $1 ORDER BY seq LIMIT $2
