"""Run joblib calls, such as those in a scikit-learn grid search, on a cluster.

Prints::

    squares: [0, 1, 4, 9]
    fits: 9
    best C: ...
"""

import joblib
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

import scaler.joblib  # registers the joblib backend "scaler"

x, y = make_classification(200, random_state=0)

with (
    scaler.SchedulerClusterCombo(n_workers=2) as cluster,
    scaler.Client(cluster.get_address()) as client,
    joblib.parallel_config("scaler", client=client, n_jobs=-1),
):
    print("squares:", joblib.Parallel()(joblib.delayed(pow)(number, 2) for number in range(4)))
    search = GridSearchCV(LogisticRegression(), {"C": [0.01, 0.1, 1.0]}, cv=3).fit(x, y)
    print("fits:", len(search.cv_results_["params"]) * search.n_splits_)
    print("best C:", search.best_params_["C"])
