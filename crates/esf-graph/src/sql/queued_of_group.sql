SELECT a.attempt_id, a.group_id, a.node_id, a.purpose, a.salvaged_from, a.retry_of, e.json,
       a.environment_digest, a.status, a.private_delta, a.lease_id, a.lease_epoch, a.worker_id, a.boot_id,
       a.priority, a.lifetime_ms, a.on_expiry, a.failure_class, a.failure_stage, a.failure_detail, a.queued_at,
       a.started_at, a.ended_at, a.created_by, a.trace_id
FROM attempts a
JOIN environments e ON e.environment_digest = a.environment_digest
WHERE a.group_id = $1 AND a.status = 'queued'
ORDER BY a.priority, a.number
LIMIT $2
