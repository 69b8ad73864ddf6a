module deadletter.dev/bed/pause

go 1.26.0
