INSERT INTO nodes (node_id, group_id, parent_id, parent_count, depth, status, root_id, attrs_id,
                   base_root_id, base_attrs_id, state_id, attempt_id, message, result, provenance,
                   changed, merge, statement_digest, created_at, created_by, sealed_at, pruned_at, trace_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)
