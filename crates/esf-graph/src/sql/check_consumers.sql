SELECT c.name FROM consumers c WHERE c.run = $1 AND c.cursor > coalesce(
    (SELECT min(x.sequence) - 1 FROM consumptions x WHERE x.consumer = c.number AND (x.state = 'available' OR x.state = 'leased')),
    c.offered) ORDER BY c.number
