SELECT d.sequence, d.outcome_digest, d.revision FROM trials t JOIN deliveries d ON d.sibling = t.sibling AND d.revision = t.revision
WHERE t.number = $1
