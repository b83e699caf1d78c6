INSERT INTO positions (number, search, entry, entries, depth, level, to_move, terminal, expansion, asking, edge_count,
                       place, value_count, value, visits, mean, proven, pruned, node_id, state_key, evaluation_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, $10, $11, $12, $13, $14, $15, $16, 0, $17, $18, $19)
