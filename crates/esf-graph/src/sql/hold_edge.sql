UPDATE edges SET in_flight = in_flight + $1 WHERE number = $2
