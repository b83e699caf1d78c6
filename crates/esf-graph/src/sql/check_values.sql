SELECT reached, value FROM rollouts
WHERE search = $1 AND status = 'accepted' AND value IS NOT NULL ORDER BY reached, ended
