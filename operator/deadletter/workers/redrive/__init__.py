"""The redriver keeps sending retryable letters of an adopted queue back to their origin, by its retry policy.

main            entry point of the pod
redriver        the loop: read new letters, keep them until they are due, send what is due, report pauses
sender          sends due letters of one round in bounded batches
rounds          how often a letter was sent back, even if the application drops our headers
feedback_guard  pauses when letters return faster than they leave or the error budget is spent
"""
