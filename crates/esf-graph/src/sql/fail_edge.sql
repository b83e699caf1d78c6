UPDATE edges SET failures = failures + 1, status = $1, closed_because = coalesce($2, closed_because) WHERE number = $3
