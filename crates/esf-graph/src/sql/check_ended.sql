SELECT count(*), count(DISTINCT ended), coalesce(max(ended) + 1, 0) FROM rollouts WHERE search = $1 AND ended IS NOT NULL
