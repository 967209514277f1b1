module onrush.bench/peers

go 1.25.0
