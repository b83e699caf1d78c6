SELECT entry FROM positions WHERE number = $1 AND entry IS NOT NULL
UNION ALL
SELECT edge FROM transpositions WHERE child = $1
