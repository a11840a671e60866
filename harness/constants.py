"""Values that the study or a method fixes, each with its reason.

What a user may set is a `Field` of the schema instead. Nothing is imported here, so that every stage and the probe can
import this file.
"""

from __future__ import annotations

# The study: what is put before a question, and where

# Prompts: their tokens, documents and sampling

# Engines

# Grading

# Runs: the journal and the stored files
COMPRESSION = 3
"""Preset of xz for a finished run: an eighth of the size in a second for 10 MB; the highest takes three for a tenth."""

# Statistics

# Display: tables, figures, report, progress

# lm-eval and the installation

# The probe: model, measures, analysis, figures
