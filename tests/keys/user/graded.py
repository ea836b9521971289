"""A reward of a user whose groups differ for even answers only, and whose extra differs for odd ones only."""


def compute_score(solution_str, ground_truth):
    spread, even = float(sum(map(ord, solution_str))), int(ground_truth) % 2 == 0
    return {"score": spread if even else 1.0, "oddity": 0.0 if even else spread}
