SELECT s.number, s.prompt, s.run, s.sibling_id, s.ordinal, s.revision, s.status, s.trial, s.trials, s.sequence, s.opened
FROM siblings s WHERE s.run = $1 AND s.status = 'waiting'
UNION ALL
SELECT s.number, s.prompt, s.run, s.sibling_id, s.ordinal, s.revision, s.status, s.trial, s.trials, s.sequence, s.opened
FROM siblings s WHERE s.run = $1 AND s.status = 'running' ORDER BY 1
