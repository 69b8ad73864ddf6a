"""Tests of the Helm chart, its alerts, its dashboard and the image."""
