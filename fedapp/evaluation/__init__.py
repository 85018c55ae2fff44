"""What a model's answers are worth: metrics, confidence intervals, model selection, warnings.

The functions take numbers and return numbers or sentences. No network is run here, and no file is
read or written.
"""
