UPDATE prompts SET open_siblings = open_siblings - 1, status = CASE open_siblings WHEN 1 THEN 'complete' ELSE 'open' END
WHERE number = $1 RETURNING open_siblings
