"""The chart: rendered, judged and described."""
