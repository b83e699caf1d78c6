INSERT INTO transpositions (child, edge) VALUES ($1, $2)
