INSERT INTO deliveries (run, sequence, kind, prompt, revision, usable, policy_version_start, policy_version_end, members, at,
    dropped_by, trained_by)
VALUES ($1, $2, 'group', $3, $4, $5, $6, $7, $8, $9, 0, 0)
