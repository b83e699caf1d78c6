SELECT l.lease_id FROM leases l JOIN attempts a ON a.attempt_id = l.attempt_id
WHERE l.status = 'held' AND (a.status NOT IN ('active', 'quiescing') OR a.lease_id <> l.lease_id)
