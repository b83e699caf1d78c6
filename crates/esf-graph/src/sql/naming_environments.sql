SELECT e.json FROM environments e
WHERE e.environment_digest IN (SELECT default_environment FROM groups)
   OR e.environment_digest IN (
       SELECT a.environment_digest FROM attempts a JOIN nodes n ON n.node_id = a.node_id
       WHERE n.status <> 'pruned' OR a.status IN ('queued', 'active', 'quiescing', 'failed'))
   OR e.environment_digest IN (SELECT environment_digest FROM runs WHERE status = 'open')
