SELECT t.number, t.first_step, t.next_step, t.least_version, t.greatest_version, t.late_digest, t.ordinal, t.revision, t.attempt_id,
       t.status, t.policy_version, ps.sibling_id, pt.ordinal, t.owned_from_step, t.node_id, t.late_outcome, t.expires_at, t.boot_id,
       t.started_at, t.ended_at, t.created_by, t.trace_id
FROM trials t LEFT JOIN trials pt ON pt.number = t.parent_trial LEFT JOIN siblings ps ON ps.number = pt.sibling WHERE t.number = $1
