"""Policy gradients: REINFORCE with a baseline and PPO, for policies that are torch modules.

    policy = MlpPolicy(module, actor, critic, encode)
    optimizer = torch.optim.Adam(policy.parameters)
    transitions, results = algorithm.gather(policy, trajectories)
    losses = update_policy(algorithm, policy, optimizer, transitions, max_grad_norm=0.5, results=results)

`policies`: the outputs of a policy, and the gradients of its parameters. `mlp`: passes through small networks in closed
form. `transitions`: transitions of trajectories, with their advantages. `distributions`: distributions of actions, and
their gradients. `algorithms`: updates of a policy, with the gradients of their losses.
"""
