"""The hands-on course and its grader; it uses `exact` and nothing else."""
