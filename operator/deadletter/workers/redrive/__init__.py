"""The redriver: a standing replayer that sends retryable letters of an adopted queue back by its policy.

main     the life of the pod
standing one turn after the other: tail the box, send what is due
rounds   how often a letter was sent already, even when the application drops our headers
pauses   why it waits, where others see it
tides    when it is better to wait: the budget is spent, or letters return faster than they leave
"""
