"""Forward in regions, each one differentiable step, and the gradients of each: planned before anything is written."""

from .joint import JointPlan, plan_joint

__all__ = ["JointPlan", "plan_joint"]
