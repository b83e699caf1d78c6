UPDATE edges
SET visits = visits + 1, in_flight = in_flight - 1, child_visits = $1, child_mean = $2, child_proven = $3
WHERE number = $4
