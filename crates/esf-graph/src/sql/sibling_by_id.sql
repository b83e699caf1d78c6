SELECT s.number, s.prompt, s.run, s.sibling_id, s.ordinal, s.revision, s.status, s.trial, s.trials, s.sequence, s.opened
FROM siblings s WHERE s.sibling_id = $1
