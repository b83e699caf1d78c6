SELECT r.number, r.rollout_id, r.search, s.search_id, r.ordinal, r.steps, r.leaf, r.stage, r.wanted, r.status, r.outcome_digest, r.value, r.reached,
       r.node_id, r.evaluation_id, r.void_class, r.void_reason, r.cost, r.expires_at, r.boot_id, r.selected_at, r.ended_at,
       r.created_by, r.trace_id
FROM rollouts r JOIN searches s ON s.number = r.search
WHERE r.search = $1 AND r.status = 'selected' AND r.boot_id = $2 AND r.expires_at <= $3
UNION ALL
SELECT r.number, r.rollout_id, r.search, s.search_id, r.ordinal, r.steps, r.leaf, r.stage, r.wanted, r.status, r.outcome_digest, r.value, r.reached,
       r.node_id, r.evaluation_id, r.void_class, r.void_reason, r.cost, r.expires_at, r.boot_id, r.selected_at, r.ended_at,
       r.created_by, r.trace_id
FROM rollouts r JOIN searches s ON s.number = r.search
WHERE r.search = $1 AND r.status = 'selected' AND r.boot_id < $2
UNION ALL
SELECT r.number, r.rollout_id, r.search, s.search_id, r.ordinal, r.steps, r.leaf, r.stage, r.wanted, r.status, r.outcome_digest, r.value, r.reached,
       r.node_id, r.evaluation_id, r.void_class, r.void_reason, r.cost, r.expires_at, r.boot_id, r.selected_at, r.ended_at,
       r.created_by, r.trace_id
FROM rollouts r JOIN searches s ON s.number = r.search
WHERE r.search = $1 AND r.status = 'selected' AND r.boot_id > $2
ORDER BY 5
