SELECT a.attempt_id FROM attempts a
WHERE a.status IN ('active', 'quiescing')
  AND NOT EXISTS (SELECT 1 FROM leases l
                  WHERE l.lease_id = a.lease_id AND l.status = 'held' AND l.epoch = a.lease_epoch)
