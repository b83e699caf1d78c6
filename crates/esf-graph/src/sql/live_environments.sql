SELECT e.json FROM environments e
WHERE e.environment_digest IN (SELECT default_environment FROM groups)
   OR e.environment_digest IN (
       SELECT environment_digest FROM attempts WHERE status IN ('queued', 'active', 'quiescing', 'failed'))
   OR e.environment_digest IN (SELECT environment_digest FROM runs WHERE status = 'open')
