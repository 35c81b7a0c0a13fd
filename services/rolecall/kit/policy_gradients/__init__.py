"""Policy gradients: REINFORCE with a baseline and PPO, for policies that are torch modules.

    policy = MlpPolicy(module, actor, critic, encode)
    optimizer = torch.optim.Adam(policy.parameters)
    transitions, _ = gather_transitions(policy, trajectories, gamma=0.99, gae_lambda=0.95)
    losses = update_policy(algorithm, policy, optimizer, transitions, max_grad_norm=0.5)

`policies`: the outputs of a policy, and the gradients of its parameters. `mlp`: passes through small networks in closed
form. `transitions`: transitions of trajectories, with their advantages. `distributions`: distributions of actions, and
their gradients. `algorithms`: updates of a policy, with the gradients of their losses.
"""
