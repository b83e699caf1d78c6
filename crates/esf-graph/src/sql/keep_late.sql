UPDATE trials SET late_digest = $1, late_outcome = $2 WHERE number = $3 AND late_digest IS NULL
