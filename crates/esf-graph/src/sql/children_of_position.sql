SELECT child FROM edges WHERE number >= $1 AND number <= $2 AND child IS NOT NULL ORDER BY number
