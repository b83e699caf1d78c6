INSERT INTO siblings (sibling_id, prompt, run, ordinal, revision, status, trials, opened)
VALUES ($1, $2, $3, $4, 0, 'waiting', 0, 0)
