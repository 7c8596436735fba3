"""How fast is a candidate, and how close to the limit of the hardware?"""
